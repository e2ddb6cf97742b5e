"""The filters and tests of Jinja templates, each within the bounds of `text/jinja_values.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jinja2 import Undefined, filters
from jinja2.tests import TESTS

from allyouneed.text.jinja_values import Values

COMPARED = {"==": "eq", "eq": "eq", "equalto": "eq", "!=": "ne", "ne": "ne", ">": "gt", "gt": "gt", "greaterthan": "gt",
            ">=": "gteq", "ge": "gteq", "<": "lt", "lt": "lt", "lessthan": "lt", "<=": "lteq", "le": "lteq",
            "in": "in"}  # fmt: skip
LOOKED_AT = (
    "boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number",
    "sameas", "sequence", "string", "true", "undefined"
)  # fmt: skip
TEXTUAL = {"upper": "upper", "lower": "lower", "capitalize": "capitalize", "trim": "strip"}  # filters -> methods


class Filters(Values):
    """Each filter has a method by its name; the tests are those of jinja2 that only look, and those that compare."""

    def filter(self, name: str, value: Any, *args: Any, **named: Any) -> Any:
        if name in TEXTUAL:
            return self.method(self.text(value), TEXTUAL[name], *args, *named.values())
        found = getattr(self, f"filter_{name}", None)
        if found is None:
            raise ValueError(f"it uses the filter {self.must_be_text(name)[:40]}, which this library does not have")
        return found(value, *args, **named)

    def test(self, name: str, value: Any, *args: Any) -> bool:
        if name in COMPARED:
            return self.compare(COMPARED[name], value, *args)
        if name in ("even", "odd", "divisibleby"):
            return bool(self.binary("%", value, *(args or (2,))) == (name == "odd"))
        if name in ("lower", "upper"):
            return bool(self.method(self.text(value), f"is{name}"))
        if name not in LOOKED_AT:
            raise ValueError(f"it uses the test {self.must_be_text(name)[:40]}, which this library does not have")
        look: Any = TESTS[name]
        return bool(look(value, *args))

    def filter_string(self, value: Any) -> str:
        return self.text(value)

    filter_safe = filter_string  # nothing is ever escaped here

    def filter_title(self, value: Any) -> str:
        return self.made(filters.do_title(self.text(value)))

    def filter_replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        most = -1 if count is None else count
        return self.method(self.text(value), "replace", self.text(old), self.text(new), most)

    def filter_indent(self, value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        self.check_width("indent", width)
        lines = self.made(self.must_be_text(value).splitlines())
        self.fits(len(value) + (1 + len(lines)) * (len(width) if isinstance(width, str) else width))
        return self.made(filters.do_indent(value, width, first, blank))

    def filter_tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        self.check_width("tojson", indent or 0)
        self.weigh(value, separators)
        coder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self.join([self.made(piece) for piece in self.walk(coder.iterencode(value))])

    def filter_int(self, value: Any, default: Any = 0, base: int = 10) -> Any:
        self.weigh(value)
        return self.made(filters.do_int(value, default, base))

    def filter_float(self, value: Any, default: Any = 0.0) -> Any:
        self.weigh(value)
        return filters.do_float(value, default)

    def filter_length(self, value: Any) -> int:
        return len(value)

    filter_count = filter_length

    def filter_default(self, value: Any, default: Any = "", boolean: bool = False) -> Any:
        return default if isinstance(value, Undefined) or (boolean and not value) else value

    filter_d = filter_default

    def filter_first(self, value: Any) -> Any:
        return next(self.walk(value), Undefined("there is no first item"))

    def filter_last(self, value: Any) -> Any:
        return next(self.walk(reversed(value)), Undefined("there is no last item"))

    def filter_list(self, value: Any) -> list[Any]:
        return self.items(value)

    def filter_reverse(self, value: Any) -> Any:
        return self.made(value[::-1]) if isinstance(value, str) else iter(self.items(value)[::-1])

    def filter_items(self, value: Any) -> Iterator[Any]:
        return filters.do_items(value)

    def filter_join(self, value: Any, d: Any = "", attribute: Any = None) -> str:
        return self.join([self.path(item, attribute) for item in self.walk(value)], self.text(d))

    def filter_dictsort(
        self, value: Any, case_sensitive: bool = False, by: Any = "key", reverse: bool = False
    ) -> list[Any]:
        self.weigh(value)
        return self.made(filters.do_dictsort(value, case_sensitive, by, reverse))

    def filter_sort(
        self, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
    ) -> list[Any]:
        items = self.items(value)
        keys = [self._sort_key(item, case_sensitive, attribute) for item in items]
        self.weigh(keys)
        order = sorted(range(len(items)), key=lambda place: keys[place], reverse=reverse)
        return [items[place] for place in order]

    def filter_unique(self, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
        found: dict[Any, Any] = {}
        for item in self.walk(value):
            found.setdefault(self.key(self._sort_key(item, case_sensitive, attribute)), item)
        return iter([*found.values()])

    def _sort_key(self, item: Any, case_sensitive: bool, attribute: Any) -> Any:
        found = self.path(item, attribute)
        return found if case_sensitive or not isinstance(found, str) else self.method(found, "lower")

    # As in Jinja, these give their items once, and are true even without any.

    def filter_map(self, value: Any, *args: Any, **named: Any) -> Iterator[Any]:
        if args:
            return iter([self.filter(args[0], item, *args[1:], **named) for item in self.walk(value)])
        found = [self.path(item, named["attribute"]) for item in self.walk(value)]
        return iter([self.filter_default(item, named.get("default", item)) for item in found])

    def filter_select(self, value: Any, *test: Any) -> Iterator[Any]:
        return self._select(value, None, test, True)

    def filter_reject(self, value: Any, *test: Any) -> Iterator[Any]:
        return self._select(value, None, test, False)

    def filter_selectattr(self, value: Any, attribute: Any, *test: Any) -> Iterator[Any]:
        return self._select(value, attribute, test, True)

    def filter_rejectattr(self, value: Any, attribute: Any, *test: Any) -> Iterator[Any]:
        return self._select(value, attribute, test, False)

    def _select(self, value: Any, attribute: Any, test: tuple[Any, ...], wanted: bool) -> Iterator[Any]:
        def holds(item: Any) -> bool:
            found = self.path(item, attribute)
            return self.test(test[0], found, *test[1:]) if test else bool(found)

        return iter([item for item in self.walk(value) if holds(item) == wanted])
