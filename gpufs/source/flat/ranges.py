"""How a listing of all keys is split into ranges that are listed at the same time.

Nothing is known of the keys but those that have come by. So a range that turns out long is cut at a guessed
key, and what lies behind becomes a range of its own. A cut costs about one request: an answer that reaches
into the next range, or an empty one, which narrows the next guess.

Some servers (those that walk a real tree) sort keys by component: `a/x` before `a-b`. Keys are cut only where
both orders agree on what lies behind. For keys that come after `after` and begin with its first `fixed` bytes
they do when the cut has the form `after[:fixed] + x`, with nothing in x that sorts before the slash, nor a
slash, or `after[:n]` and then the last of all characters, with no slash in `after[fixed:n - 1]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufs.source.base import Page

from .keys import split_key
from .listing import Listed, Listing
from .tree import Sharing, Walk

PARALLEL = 8  # requests at once, at most
_EARLY_ANSWERS, _EARLY_WASTE = 4, 2  # once so many answers have come, so many may be wasted,
_ANSWERS_PER_WASTE = 16  # and one more each time that so many more have
_CUT_WASTES = 0.5  # of an answer: the last one of a range is full for half of it
_LAST = "\U0010ffff".encode()  # behind every other character of a key
_MISSES = 2  # guesses in a row after which the first position that varies is searched
_FEW = 8  # answers
_PRECISION = 3  # characters of a guess
_SAMPLE = 50  # of so many keys one is looked at for its characters


@dataclass(slots=True, eq=False)
class Range:
    """The keys behind `after`, up to and including `until`, that start with `prefix`.

    `after` is the latest key that came, or where to begin; `token` continues the listing. `uniform` is how
    many bytes all keys of the latest answer have in common. While `fixed() < seek_to`, the first position at
    which keys to come differ is searched between the two.
    """

    walk: Walk
    prefix: bytes = b""
    after: bytes = b""
    until: bytes | None = None
    token: str | None = None
    begun: bool = False
    answers: int = 0  # since it was made or cut
    uniform: int = 0
    seek_to: int = 0
    may_enter: bool = True
    cut_from: Range | None = None  # until it is known whether there is any key
    sought: bool = False  # `after` was a cut of a search, not a guess
    starts_anywhere: bool = False  # until the first key behind `after`, others may come
    misses: int = 0  # guesses behind which there was nothing, since the last search

    def holds(self, key: bytes) -> bool:
        return (self.until is None or key <= self.until) and key.startswith(self.prefix)

    def missed(self, sought: bool) -> None:
        """There was nothing behind the cut."""
        self.misses = 0 if sought else self.misses + 1
        self.seek_to = self.uniform if self.misses >= _MISSES else 0

    def may_cut_at(self, key: bytes) -> bool:
        return self.after < key and (self.until is None or key < self.until)

    def fixed(self) -> int:
        """How many bytes of `after` all keys still to come begin with."""
        same = _alike(self.after, self.until) if self.until is not None else 0
        return max(same, len(self.prefix))


@dataclass(frozen=True, slots=True)
class Cut:
    """`at`: where the part behind begins. `inside`: what all keys before it start with, if that is new.
    `directories`: the innermost directory that both parts may have keys in."""

    at: bytes
    directories: list[bytes]
    inside: bytes | None = None


class Splitter:
    """The ranges of one walk that are still being listed. Used by one thread."""

    def __init__(self) -> None:
        self._sharing = Sharing()
        self.ranges = [Range(Walk(self._sharing))]
        self._first = b""  # key of all
        self._answers = 0
        self._wasted = 0.0  # answers
        self._may_cut = True
        self._alphabet: list[int] = []  # characters behind the slash by which keys in a row differ, in order

    def accept(self, part: Range, listing: Listing) -> list[Listed]:
        """The keys of an answer that belong to the range, which is over when it has no token then."""
        objects = listing.objects
        if objects and not part.begun and not part.answers and self._is_too_early(objects[0].key, part):
            part.starts_anywhere = True  # this server disregards where to begin
            self._may_cut = False
        if part.starts_anywhere and not part.begun:
            objects = [item for item in objects if item.key > part.after]
        part.token = listing.token
        if objects and not part.holds(objects[-1].key):
            objects = [item for item in objects if part.holds(item.key)]
            part.token = None
        if part.token is None:
            self.ranges.remove(part)
        self._answers += 1
        if listing.objects:
            self._wasted += 1 - len(objects) / len(listing.objects)
        else:
            self._wasted += 1
        part.answers += 1
        if objects:
            part.begun = True
            part.after = objects[-1].key
            part.uniform = _alike(objects[0].key, part.after)
            self._learn(part, objects)
        if part.cut_from is not None and (objects or part.token is None):
            if not objects:
                part.cut_from.missed(part.sought)
            elif part.sought:
                part.cut_from.answers = min(part.cut_from.answers, -_FEW)  # likely the smaller part
            part.cut_from = None
        return objects

    def _is_too_early(self, key: bytes, part: Range) -> bool:
        """Whether a range cannot begin with this key, in whichever of the two orders."""
        if not part.after:
            self._first = key
            return False
        return key == self._first or _is_before(key, part.after)

    def pages(self, part: Range, objects: list[Listed]) -> list[Page]:
        """What the accepted keys add to the tree. To be called before the next split(). Raises NotSorted."""
        pages = part.walk.feed(objects)
        return pages if part.token is not None else [*pages, *part.walk.finish()]

    def split(self) -> Range | None:
        """A new range, cut off from one under way; None when that is not worth it now."""
        allowed = self._answers // _ANSWERS_PER_WASTE
        allowed += _EARLY_WASTE if self._answers >= _EARLY_ANSWERS else 0
        wasted = self._wasted + _CUT_WASTES * len(self.ranges)
        if not self._may_cut or wasted > allowed or len(self.ranges) >= PARALLEL:
            return None
        in_doubt = {id(part.cut_from) for part in self.ranges}
        for part in sorted(self.ranges, key=lambda part: -part.answers):
            if not part.begun or part.answers <= 0 or id(part) in in_doubt:
                continue
            if (behind := self._split(part)) is not None:
                self.ranges.append(behind)
                return behind
        return None

    def _split(self, part: Range) -> Range | None:
        key, fixed = part.after, part.fixed()
        slash = key.find(b"/", fixed)
        seeks = 0
        cut: Cut | None = None
        if slash >= 0 and (slash == fixed or (part.may_enter and part.uniform > slash)):
            cut = _behind_all_like(key[: slash + 1])  # perhaps all that are left are in this directory
        elif part.seek_to <= fixed:
            at = key[:fixed] + self._middle(key[fixed:], part.until[fixed:] if part.until else None)
            cut = Cut(at, split_key(at)[0])
            if not part.may_cut_at(at):
                part.seek_to = part.uniform
        if part.seek_to > fixed:
            seeks = (fixed + (part.seek_to if slash < 0 else min(part.seek_to, slash))) // 2
            cut = _behind_all_like(key[: seeks + 1])
        if cut is None or not part.may_cut_at(cut.at):
            return None
        entered = cut.inside is not None and cut.inside.endswith(b"/")
        behind = Range(
            Walk(self._sharing, cut.directories, cut.at),
            prefix=part.prefix,
            after=cut.at,
            until=part.until,
            seek_to=seeks,
            may_enter=part.may_enter and not entered,
            cut_from=part,
            sought=seeks > 0,
        )
        part.until = cut.at
        part.prefix = part.prefix if cut.inside is None else cut.inside
        part.answers = part.seek_to = 0
        part.may_enter = part.may_enter or entered
        return behind

    def _middle(self, low: bytes, high: bytes | None) -> bytes:
        """About halfway between two texts: the characters that keys have are taken for digits."""
        base = len(self._alphabet) + 1
        end = base**_PRECISION if high is None else self._number(high)
        number = (self._number(low) + end + 1) // 2
        digits = [number // base**power % base for power in range(_PRECISION - 1, -1, -1)]
        if 0 in digits:  # nothing sorts before the end of a key
            del digits[digits.index(0) :]
        return bytes(self._alphabet[digit - 1] for digit in digits)

    def _number(self, text: bytes) -> int:
        number = 0
        for at in range(_PRECISION):
            digit = sum(character <= text[at] for character in self._alphabet) if at < len(text) else 0
            number = number * (len(self._alphabet) + 1) + digit
        return number

    def _learn(self, part: Range, objects: list[Listed]) -> None:
        differing = slice(part.uniform, part.uniform + _PRECISION)
        for item in objects[::_SAMPLE]:
            new = {character for character in item.key[differing] if 0x2F < character < 0x7F}
            if not new.issubset(self._alphabet):
                self._alphabet = sorted(new.union(self._alphabet))


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def _is_before(key: bytes, other: bytes) -> bool:
    """In both orders."""
    return key < other and key.split(b"/") < other.split(b"/")


def _behind_all_like(start: bytes) -> Cut | None:
    """Behind all keys that begin with `start`."""
    try:
        start.decode()
    except UnicodeDecodeError:  # in the middle of a character
        return None
    directories = split_key(start)[0]
    if start.endswith(b"/"):
        if len(directories) < start.count(b"/"):
            return None  # among keys that no path can name
        directories = directories[:-1]
    return Cut(start + _LAST, directories, start)
