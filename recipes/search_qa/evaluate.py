"""Play held-out questions and score the answers. Knows rollouts and questions, trains nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envmask_trl import KeptCacheSampler, RolloutLimits, TagProtocol, Trajectory, rules, run_rollouts

EM = rules.em_answer(extract=rules.in_tag("answer"))  # as SQuAD and Search-R1 count it
F1 = rules.f1_answer(extract=rules.in_tag("answer"))


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over questions of one kind.

    Example:
        Scores(questions=96, em=0.81, f1=0.84, searches=1.03, found=0.97, without_search=0.02)
    """

    questions: int
    em: float
    f1: float
    searches: float  # per question
    found: float | None  # share of the needed articles that a search showed; None where the path is not known
    without_search: float  # share of answers after no search at all


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict],
    *,
    protocol: TagProtocol,
    limits: RolloutLimits,
    greedy: bool,
) -> tuple[dict[str, Scores], list[Trajectory]]:
    """One rollout for each row, sampled at temperature 1 or greedy; the scores of each number of hops and of all."""
    model.eval()
    trajectories = run_rollouts(
        [row["prompt"] for row in rows],
        tokenizer=tokenizer,
        sampler=KeptCacheSampler(model, tokenizer, do_sample=not greedy, stop_strings=protocol.stop_strings),
        protocol=protocol,
        limits=limits,
    )
    hops = sorted({row["hops"] for row in rows if row.get("hops")})
    kinds = {str(number): [i for i, row in enumerate(rows) if row.get("hops") == number] for number in hops}
    kinds["all"] = list(range(len(rows)))
    scores = {kind: score([rows[i] for i in of], [trajectories[i] for i in of]) for kind, of in kinds.items()}
    return scores, trajectories


def score(rows: Sequence[dict], trajectories: Sequence[Trajectory]) -> Scores:
    answers = [row["answer"] for row in rows]
    searched = [len(trajectory.tool_results) for trajectory in trajectories]
    pairs = zip(trajectories, rows, strict=True)
    found = [found_share(trajectory, row["path"]) for trajectory, row in pairs if row.get("path")]
    return Scores(
        questions=len(rows),
        em=mean(EM(trajectories=trajectories, answer=answers)),
        f1=mean(F1(trajectories=trajectories, answer=answers)),
        searches=mean(searched),
        found=mean(found) if found else None,
        without_search=mean([float(number == 0) for number in searched]),
    )


def found_share(trajectory: Trajectory, path: Sequence[str]) -> float:
    """The share of the needed articles that stand in the results of searches."""
    shown = "\n".join(result.content for result in trajectory.tool_results)
    return sum(f"(Title: {title})" in shown for title in path) / len(path)


def mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / max(1, len(known))
