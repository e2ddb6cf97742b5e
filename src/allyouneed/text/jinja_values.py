"""What the values of a Jinja template can do: operators, attributes and methods, each within bounds.

A value is plain data (numbers, texts, lists, dicts), a namespace, a loop, or something to call. Whatever takes time or
memory is paid in steps before it happens, so the steps of a template bound both.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, KeysView
from functools import partial
from types import NoneType
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import LoopContext

MOST_STEPS = 100_000  # a well-known template takes some hundreds
MOST_TEXT = 1_000_000  # characters of a text, entries of a list
MOST_NUMBER = 2**63
MOST_POWER = 64
MOST_WIDTH = 1000  # of a text that is filled up or indented
MOST_DEPTH = 100  # of lists in lists
TEXT = 64  # characters that are copied, for one step
SEARCH = 1024  # characters that are compared, for one step

SEQUENCES = (str, list, tuple)
PLAIN = (NoneType, bool, int, float, str, range, Undefined)
METHODS: dict[type, tuple[str, ...]] = {
    str: (
        "capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha",
        "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
        "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
        "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
        "swapcase", "title", "upper", "zfill"
    ),
    dict: ("get", "items", "keys", "values"),
    list: ("count", "index"),
    tuple: ("count", "index"),
}  # fmt: skip
WIDE = ("center", "ljust", "rjust", "zfill")
LOOP = (
    "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem",
    "revindex", "revindex0"
)  # fmt: skip
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
             "%": operator.mod, "**": operator.pow, "eq": operator.eq, "ne": operator.ne, "gt": operator.gt,
             "gteq": operator.ge, "lt": operator.lt, "lteq": operator.le}  # fmt: skip


def kind(value: Any) -> str:
    return type(value).__name__


class Namespace:
    """Values that a template can change from inside a loop."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


class Values:
    """The steps that are left, and what can be done with them."""

    def __init__(self, room: int) -> None:
        self.left = MOST_STEPS + room
        self.longest = MOST_TEXT + 4 * room

    # The bounds

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise ValueError("it takes too many steps")

    def fits(self, size: int) -> None:
        """Before a value of this size is made."""
        if size > self.longest:
            raise ValueError(f"it makes a text or a list of {size:,}, and the most is {self.longest:,}")

    def made(self, value: Any) -> Any:
        """A new value, paid for by its size; what is inside was paid for before."""
        if isinstance(value, str):
            self.fits(len(value))
            self.spend(len(value) // TEXT)
        elif isinstance(value, list | tuple | dict):
            self.spend(len(value))
        elif isinstance(value, int) and abs(value) > MOST_NUMBER:
            raise ValueError("it makes a number of more than 64 bits")
        return value

    def weigh(self, *values: Any) -> None:
        """Before a look at all of a value, with all that is inside, as often as it is there."""
        level: list[Any] = [*values]
        for _ in range(MOST_DEPTH):
            inside: list[Any] = []
            for value in level:
                self.spend(1)
                if isinstance(value, str):
                    self.spend(len(value) // TEXT)
                elif isinstance(value, list | tuple | dict):
                    self.spend(len(value))
                    inside += [*value, *value.values()] if isinstance(value, dict) else value
                elif not isinstance(value, PLAIN):
                    raise ValueError(f"it uses a {kind(value)} where plain data is needed")
            if not inside:
                return
            level = inside
        raise ValueError(f"it puts lists into lists, {MOST_DEPTH} deep")

    def search(self, text: str, *given: Any) -> None:
        """Before a search in a text: from the right, Python compares each character with each."""
        self.weigh(text, *given)
        self.spend(len(text) * sum(len(one) for one in given if isinstance(one, str)) // SEARCH)

    def walk(self, value: Any) -> Iterator[Any]:
        for item in value:
            self.spend(1)
            yield item

    def items(self, value: Any) -> list[Any]:
        return list(self.walk(value))

    def text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        self.weigh(value)
        return self.made(str(value))

    def join(self, values: list[Any], between: str = "") -> str:
        texts = [self.text(value) for value in values]
        self.fits(sum(map(len, texts)) + len(between) * len(texts))
        return self.made(between.join(texts))

    def key(self, value: Any) -> Any:
        """Of a dict. Python finds the hash of tuples in tuples without a look at how deep they are."""
        if isinstance(value, tuple):
            raise ValueError("it uses a tuple as a key")
        return value

    # Operators, attributes, methods

    def binary(self, name: str, one: Any, other: Any) -> Any:
        unknown = isinstance(one, Undefined) or isinstance(other, Undefined)  # a sentence of jinja2
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        if name == "+" and isinstance(one, SEQUENCES) and type(one) is type(other):
            self.fits(len(one) + len(other))
        elif name == "*" and isinstance(one, SEQUENCES) and isinstance(other, int):
            self.fits(len(one) * other)
        elif name == "*" and isinstance(one, int) and isinstance(other, SEQUENCES):
            self.fits(one * len(other))
        elif not unknown and (not numbers or (name == "**" and max(abs(one), abs(other)) > MOST_POWER)):
            raise ValueError(f"it uses {name} on a {kind(one)} and a {kind(other)}")
        return self.made(OPERATORS[name](one, other))

    def compare(self, name: str, one: Any, other: Any) -> bool:
        if name in ("in", "notin"):
            return self.contains(other, one) == (name == "in")
        self.weigh(one, other)
        return bool(OPERATORS[name](one, other))

    def contains(self, value: Any, item: Any) -> bool:
        if isinstance(value, str):
            self.search(value, item)
            return item in value
        if isinstance(value, dict | KeysView):
            return self.key(item) in value
        items = self.items(value)
        self.weigh(item, items)
        return item in items

    def attribute(self, value: Any, name: str) -> Any:
        """`value.name`: an attribute first, as in Python, then an entry of a dict."""
        if isinstance(value, Undefined):
            return value._fail_with_undefined_error()
        if isinstance(value, Namespace):
            return value.values.get(name, Undefined(obj=value, name=name))
        if isinstance(value, LoopContext) and name in LOOP:
            return getattr(value, name)
        if name in METHODS.get(type(value), ()):
            return partial(self.method, value, name)
        if hasattr(type(value), name):
            raise ValueError(f"it uses {name} of a {kind(value)}, which this library does not have")
        missing = Undefined(obj=value, name=name)
        return value.get(name, missing) if isinstance(value, dict) else missing

    def item(self, value: Any, key: Any) -> Any:
        """`value[key]`: an entry first, then an attribute."""
        if isinstance(value, Undefined):
            return value._fail_with_undefined_error()
        try:
            if isinstance(value, (*SEQUENCES, dict, range)):
                found = value[self.key(key)]
                return self.made(found) if isinstance(key, slice) else found
        except (TypeError, LookupError):
            pass
        if isinstance(key, str):
            return self.attribute(value, key)
        return Undefined(obj=value, name=str(key) if isinstance(key, int) else kind(key))

    def path(self, value: Any, names: Any) -> Any:
        """An attribute of an attribute, as filters name it: "function.name", or a place in a list; None is itself."""
        if names is None:
            return value
        for name in names.split(".") if isinstance(names, str) else [names]:
            value = self.item(value, int(name) if isinstance(name, str) and name.isdigit() else name)
        return value

    def method(self, value: Any, name: str, *args: Any, **named: Any) -> Any:
        if isinstance(value, dict):
            for key in args[:1]:
                self.key(key)
        elif name == "join":
            (items,) = args
            return self.join([self.must_be_text(item) for item in self.walk(items)], value)
        elif isinstance(value, str):
            self.search(value, *args, *named.values())
            if name == "replace":
                old, new = map(self.text, args[:2])
                self.fits(len(value) + value.count(old) * len(new))
            if name in WIDE and args:
                self.check_width(name, args[0])
        else:
            self.weigh(value, *args)
        return self.made(getattr(value, name)(*args, **named))

    def must_be_text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"it uses a {kind(value)} where a text is needed")
        return value

    def check_width(self, name: str, width: Any) -> None:
        if (len(width) if isinstance(width, str) else width) > MOST_WIDTH:
            raise ValueError(f"it uses {name} with a width of more than {MOST_WIDTH:,}")
