"""Repeats a program of ``shiplap.puzzles`` as a strategy of ``shiplap.train``.

A program keeps values in dictionaries of any keys, and passes on values that it never stored. The
engine stores each value in one numbered slot (storing it again is a copy), and drops what is not
stored before the next call. So before each call the replay stores the values that are new in the
dictionaries or used later, each once, and erases those that are neither any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from shiplap import _shiplap

_MAPS = {"Weight": 0, "OptState": 1, "Activation": 2, "ActivationGrad": 3, "WeightGrad": 4}
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")

Slot = Any  # (dictionary, key), or the id of a value that has no slot of its own
Place = tuple[int, int]  # the engine's map and number


@dataclasses.dataclass
class Call:
    """A call of a Model, and how the dictionaries changed since the call before."""

    name: str
    numbers: tuple[Any, ...]  # layer, shard, rank, ..
    values: tuple[Any, ...]
    results: tuple[Any, ...]
    stored: Sequence[tuple[Slot, Any]]  # None: the slot is empty now


def _operands(value: Any) -> Iterable[Any]:
    """What a value was derived from, outside the calls."""
    origin = getattr(value, "_origin", None) or ()
    return [part for part in origin if type(part).__name__ in _MAPS]


def _last_uses(calls: Sequence[Call]) -> dict[int, int]:
    """The last call at which each value must be stored, by the id of the value."""
    uses: dict[int, int] = {}
    known: set[int] = set()

    def derive(value: Any, index: int) -> None:
        if id(value) in known:
            return
        known.add(id(value))
        for operand in _operands(value):
            derive(operand, index)
            uses[id(operand)] = max(index - 1, uses.get(id(operand), -1))

    for index, call in enumerate(calls):
        for value in [*(value for _, value in call.stored if value is not None), *call.values]:
            derive(value, index)
        uses.update((id(value), index) for value in call.values)
        known.update(map(id, call.results))
    # The step is repeated, so the last updated values stay, even if the program drops them.
    updates = [call for call in calls if call.name == "update"]
    again = {id(value) for call in updates for value in call.values}
    results = [id(value) for call in updates for value in call.results]
    uses.update((number, len(calls)) for number in results if number not in again)
    return uses


class Replay:
    """One rank of a program on a Model of the engine."""

    def __init__(self, calls: Sequence[Call], model: Any) -> None:
        self._calls = calls
        self._model = model
        self._maps = model.storage()
        self._uses = _last_uses(calls)
        self._known: dict[int, Any] = {}  # the engine's values, by the id of the program's
        self._contents: dict[Slot, int] = {}  # of the dictionaries: ids
        self._holders: dict[int, set[Slot]] = {}  # the dictionaries' slots of each value
        self._places: dict[int, Place] = {}  # of the values that the engine stores
        self._occupants: dict[Place, int] = {}
        self._numbers: dict[Slot, int] = {}
        self._results: Sequence[Any] = ()  # of the last call
        self._before: dict[int, int] = {}  # of updated values: what they were

    async def run(self) -> None:
        """Makes all calls."""
        for index, call in enumerate(self._calls):
            self._arrange(index, call)
            results = await self._perform(call)
            self._known.update(zip(map(id, call.results), results, strict=True))
            self._results = call.results
            if call.name == "update":
                self._before.update(zip(map(id, call.results), map(id, call.values[1:])))

    async def _perform(self, call: Call) -> tuple[Any, ...]:
        if call.name == "end":
            return ()
        arguments = (*call.numbers, *map(self._value, call.values))
        if call.name in _COLLECTIVES:
            arguments = arguments[::-1]  # value, layer
        result = getattr(self._model, call.name)(*arguments)
        if call.name in (*_COLLECTIVES, "send", "receive"):
            result = await result
        if not call.results:
            return ()
        return result if isinstance(result, tuple) else (result,)

    def _value(self, value: Any) -> Any:
        """The engine's value. One that no call made is refused by the engine when it is stored."""
        if id(value) not in self._known:
            self._known[id(value)] = self._derive(value)
        return self._known[id(value)]

    def _derive(self, value: Any) -> Any:
        operands = [self._stored(operand) for operand in _operands(value)]
        if not operands:
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return getattr(_shiplap, type(value).__name__)(**fields)
        kind, *rest = value._origin
        if kind == "shard":
            return operands[0].shard(*rest[1:])
        if kind == "combine":
            return operands[0].combine(operands[1])
        return operands[0] + operands[1]

    def _stored(self, operand: Any) -> Any:
        """An operand. The engine adds only values that were stored, or are results of the call."""
        known = id(operand) in self._known
        derived = self._value(operand)
        if not known:
            self._store(operand, self._place(id(operand), operand))
        return self._known.get(id(operand), derived)

    # ---- slots

    def _arrange(self, index: int, call: Call) -> None:
        """Brings the slots to the state before a call."""
        self._change_dictionaries(call)

        def is_needed(number: int) -> bool:
            return bool(self._holders.get(number)) or self._uses.get(number, -1) >= index

        stored = [(slot, value) for slot, value in call.stored if value is not None]
        used = [(id(value), value) for value in (*self._results, *call.values)]
        new: dict[int, tuple[Slot, Any]] = {}
        for slot, value in [*stored, *used]:
            if id(value) not in self._places and is_needed(id(value)):
                new.setdefault(id(value), (slot, value))
        for _, value in new.values():
            self._value(value)
        # A value that takes the place of its operand comes after the others that need the operand.
        for slot, value in sorted(new.values(), key=lambda each: self._home(*each) in
                                  self._occupants):
            home = self._home(slot, value)
            occupied = home in self._occupants and is_needed(self._occupants[home])
            self._store(value, self._place(id(value), value) if occupied else home)
        for number in [number for number in self._places if not is_needed(number)]:
            self._erase(number)

    def _change_dictionaries(self, call: Call) -> None:
        for slot, value in call.stored:
            if slot in self._contents:
                self._holders[self._contents.pop(slot)].discard(slot)
            if value is not None:
                self._contents[slot] = id(value)
                self._holders.setdefault(id(value), set()).add(slot)

    def _home(self, slot: Slot, value: Any) -> Place:
        """Where a value goes, unless another is needed there. An update goes over its operand."""
        before = self._before.get(id(value))
        if before in self._places:
            return self._places[before]
        return self._place(slot, value)

    def _place(self, slot: Slot, value: Any) -> Place:
        number = self._numbers.setdefault(slot, len(self._numbers))
        return _MAPS[type(value).__name__], number

    def _store(self, value: Any, place: Place) -> None:
        stored = self._value(value)
        self._maps[place[0]][place[1]] = stored
        self._known[id(value)] = self._maps[place[0]][place[1]]  # it has a number of its own now
        if place in self._occupants:
            del self._places[self._occupants[place]]
        self._places[id(value)] = place
        self._occupants[place] = id(value)

    def _erase(self, number: int) -> None:
        place = self._places.pop(number)
        del self._occupants[place]
        del self._maps[place[0]][place[1]]
