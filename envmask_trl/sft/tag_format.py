"""Which tags an agent format writes. Knows text: no tokens, no data sets.

react             Thought: ..\\nAction: ..\\nObservation: ..\\nThought: ..\\nFinal Answer: ..
thought_action    <thought>..</thought><action>..</action><observation>..</observation>..<answer>..</answer>
search_r1         <think>..</think><search>..</search><information>..</information>..<answer>..</answer>
"""

import html
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property

from .parts import Kind

Tag = tuple[str, str | None]  # opening and closing; closing None where a part ends with the next one's opening
OBSERVATION = "observation"


@dataclass(frozen=True)
class Marker:
    """One tag as it stands in a text.

    Example:
        Marker(name="observation", opens=True, start=41, end=54)
    """

    name: str  # "observation" or a `Kind`
    opens: bool
    start: int  # in characters
    end: int


@dataclass(frozen=True)
class TagFormat:
    """The tags of one format. An observation's tag is needed; each further one lets more be checked and weighted.

    With closing tags a part may stand anywhere. Without, every tag is a line's beginning ("Observation:", also
    "Observation 2:"), and a part ends where the next begins.

    Example:
        TagFormat(observation=("<information>", "</information>"), call=("<search>", "</search>"))

    Raises:
        ValueError: a tag is empty, two are equal, or only some have a closing tag.
    """

    observation: Tag
    thought: Tag | None = None
    call: Tag | None = None
    answer: Tag | None = None
    ends_with_eos: bool = True  # the model samples the tokenizer's eos behind its last turn

    def __post_init__(self) -> None:
        wrong = {name: tag for name, tag in self.tags.items() if not is_tag(tag)}
        if wrong or OBSERVATION not in self.tags:
            raise ValueError(
                f"the tags are {wrong or self.tags}, expected a pair for observations and for each further part: "
                "('<information>', '</information>') or ('Observation:', None)"
            )
        texts = self.texts
        if len(set(texts)) != len(texts) or not all(text.strip() for text in texts):
            raise ValueError(f"the tags are {texts}, expected each to be different and none empty")
        if len({close is None for _, close in self.tags.values()}) != 1:
            raise ValueError(f"the tags are {texts}, expected all to have a closing tag or none")
        if self.by_line and (self.call is None or not all(text.rstrip().endswith(":") for text in texts)):
            raise ValueError(
                f"the tags are {texts}; a format without closing tags needs one for calls, and each must end in ':'"
            )

    @cached_property
    def tags(self) -> dict[str, Tag]:
        named = {
            Kind.THOUGHT.value: self.thought,
            Kind.CALL.value: self.call,
            OBSERVATION: self.observation,
            Kind.ANSWER.value: self.answer,
        }
        return {name: tag for name, tag in named.items() if tag is not None}

    @property
    def texts(self) -> list[str]:
        return [text for tag in self.tags.values() for text in tag if text is not None]

    @property
    def by_line(self) -> bool:
        return self.observation[1] is None

    def markers(self, text: str) -> list[Marker]:
        """All tags in `text`, in order."""
        return [
            Marker(name.rstrip("_"), not name.endswith("_"), match.start(name), match.end(name))
            for match in self._pattern.finditer(text)
            for name in (match.lastgroup or "",)
        ]

    def near_miss(self, text: str) -> str | None:
        """A tag of an observation in other letters or with other spaces than the format's; None if there is none."""
        exact = {(m.start, m.end) for m in self.markers(text) if m.name == OBSERVATION}
        found = (match for match in self._loose.finditer(text) if match.span(1) not in exact)
        return next((match.group(1) for match in found), None)

    def disguised(self, text: str) -> str | None:
        """A tag of an observation in full-width letters or as HTML entities, which no reader of tags would see."""
        plain = unicodedata.normalize("NFKC", html.unescape(text))
        match = self._loose.search(plain) if plain != text else None
        return match.group(1) if match and len(self._loose.findall(text)) < len(self._loose.findall(plain)) else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        if self.by_line:
            starts = [f"(?P<{name}>{line_start(tag[0])})" for name, tag in self.tags.items()]
            return re.compile(rf"(?m)^[ \t]*(?:{'|'.join(starts)})")
        pairs = [(name, opening) for name, (opening, _) in self.tags.items()]
        pairs += [(f"{name}_", closing) for name, (_, closing) in self.tags.items() if closing is not None]
        pairs.sort(key=lambda pair: -len(pair[1]))
        return re.compile("|".join(f"(?P<{name}>{re.escape(text)})" for name, text in pairs))

    @cached_property
    def _loose(self) -> re.Pattern[str]:
        """An observation's tags with any case and any white space inside."""
        if self.by_line:
            word = re.escape(self.observation[0].rstrip().removesuffix(":").rstrip())
            return re.compile(rf"(?mi)^[ \t]*({word}[ \t]*\d*[ \t]*[:：])")
        loose = [r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", text or ""))) for text in self.observation]
        return re.compile(f"(?i)({'|'.join(sorted(loose, key=len, reverse=True))})")


def is_tag(tag: object) -> bool:
    """Whether it is an opening and a closing text, or an opening one and None."""
    return (
        isinstance(tag, list | tuple)
        and len(tag) == 2
        and isinstance(tag[0], str)
        and (tag[1] is None or isinstance(tag[1], str))
    )


def line_start(opening: str) -> str:
    """A pattern for "Observation:" and "Observation 2:"."""
    word = opening.rstrip().removesuffix(":").rstrip()
    return rf"{re.escape(word)}(?: \d+)?:"


FORMATS = {
    "react": TagFormat(
        observation=("Observation:", None),
        thought=("Thought:", None),
        call=("Action:", None),
        answer=("Final Answer:", None),
    ),
    "thought_action": TagFormat(
        observation=("<observation>", "</observation>"),
        thought=("<thought>", "</thought>"),
        call=("<action>", "</action>"),
        answer=("<answer>", "</answer>"),
    ),
    "search_r1": TagFormat(
        observation=("<information>", "</information>"),
        thought=("<think>", "</think>"),
        call=("<search>", "</search>"),
        answer=("<answer>", "</answer>"),
        ends_with_eos=False,  # a rollout stops at the closing tag
    ),
}


def tag_format(tags: "str | tuple[str, str] | TagFormat") -> TagFormat:
    """A format by its name, from one pair of tags, or as it is.

    Raises:
        ValueError: there is no format of that name.
    """
    if isinstance(tags, TagFormat):
        return tags
    if isinstance(tags, str):
        if tags not in FORMATS:
            raise ValueError(f"tags is {tags!r}, expected a pair of tags, a TagFormat, or one of {', '.join(FORMATS)}")
        return FORMATS[tags]
    if not isinstance(tags, list | tuple) or len(tags) != 2:
        raise ValueError(f"tags is {tags!r}, expected a pair of tags, a TagFormat, or one of {', '.join(FORMATS)}")
    opening, closing = tags
    return TagFormat(observation=(opening, closing))
