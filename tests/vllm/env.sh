# Source this before running tests/vllm: one process, no telemetry, a small cache, and pytest's options for this folder alone.
# The main run ignores tests/vllm and turns warnings into errors; vLLM's imports warn, so here they are only shown.
# No capture of logs: PyTorch's compiler writes its trace to any handler that listens, pytest's too.
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_NO_USAGE_STATS=1
export VLLM_CACHE_ROOT="$PWD/.cache/vllm" VLLM_LOGGING_LEVEL=WARNING
export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-29511}" GLOO_SOCKET_IFNAME=lo
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export PYTEST_ADDOPTS="-p no:logging -o addopts=--strict-markers -o filterwarnings=default"
