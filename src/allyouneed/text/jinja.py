"""Jinja templates, filled within bounds.

A template comes with a model from elsewhere, and Jinja compiles one to Python: a loop, a text that doubles itself or a
filter with a huge number then runs without end. Here jinja2 only reads the template. Its syntax tree is walked with a
number of steps that every loop, text and list is paid from, and there is only what `text/jinja_values.py` and
`text/jinja_filters.py` list.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from jinja2 import Environment, TemplateError, Undefined, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext

from allyouneed.text.jinja_filters import Filters
from allyouneed.text.jinja_values import TEXT, Namespace

MOST_DATE = 100  # characters of the format of a date
FILTERED = "filter block"  # the name of the text that a filter block filters; no variable can have it

Scope = ChainMap[str, Any]


class Break(Exception):
    """The loop ends here."""


class Continue(Exception):
    """The next turn of the loop begins."""


class Generation(Extension):
    """{% generation %}: the transformers library marks with it what the model has written. It shows nothing."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def fill(template: str, values: Mapping[str, Any], room: int = 0) -> str:
    """The text of a template, which is not too long itself. `room` is how many characters the values have: a long text
    may take more steps. Raises a ValueError that says what is wrong."""
    try:
        return Filling(room).fill(_parse(template), values)
    except (Break, Continue) as error:
        raise ValueError(f"it has a {type(error).__name__.lower()} outside of a loop") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (TemplateError, TypeError, ArithmeticError, LookupError, AttributeError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from None


@lru_cache(maxsize=8)
def _parse(template: str) -> nodes.Template:
    """The syntax tree, with the settings of the transformers library."""
    extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", Generation]
    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions).parse(template)


class Filling(Filters):
    """One walk through a template. Each statement and each expression has a method by the name of its node."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.out: list[str] = []

    def fill(self, template: nodes.Template, values: Mapping[str, Any]) -> str:
        known = {"range": self.range, "dict": self.dict, "namespace": self.namespace, "joiner": self.joiner}
        known |= {"raise_exception": self.complain, "strftime_now": self.date}
        return self.captured(template.body, ChainMap({}, dict(values), known))

    def run(self, statements: Sequence[nodes.Node], scope: Scope) -> None:
        for statement in statements:
            self.spend(1)
            self._method("run", statement)(statement, scope)

    def value(self, node: nodes.Node, scope: Scope) -> Any:
        self.spend(1)
        return self._method("value", node)(node, scope)

    def _method(self, what: str, node: nodes.Node) -> Callable[..., Any]:
        name = type(node).__name__.lower()
        found = getattr(self, f"{what}_{name}", None)
        if found is None:
            raise ValueError(f"it uses {name}, which this library does not have")
        return found

    def captured(self, statements: Sequence[nodes.Node], scope: Scope) -> str:
        """What the statements write."""
        outside, self.out = self.out, []
        try:
            self.run(statements, scope)
            return self.made("".join(self.out))
        finally:
            self.out = outside

    def write(self, text: str) -> None:
        self.spend(len(text) // TEXT)
        self.out.append(text)

    def assign(self, target: nodes.Node, value: Any, scope: Scope) -> None:
        if isinstance(target, nodes.Tuple):
            values = self.items(value)
            if len(values) != len(target.items):
                raise ValueError(f"it takes {len(target.items)} values from {len(values)}")
            for inner, one in zip(target.items, values):
                self.assign(inner, one, scope)
        elif isinstance(target, nodes.NSRef):
            space = scope.get(target.name)
            if not isinstance(space, Namespace):
                raise ValueError(f"{target.name} is no namespace")
            space.values[target.attr] = value
        else:
            assert isinstance(target, nodes.Name)
            scope[target.name] = value

    # Statements

    def run_output(self, node: nodes.Output, scope: Scope) -> None:
        for inner in node.nodes:
            self.write(inner.data if isinstance(inner, nodes.TemplateData) else self.text(self.value(inner, scope)))

    def run_if(self, node: nodes.If, scope: Scope) -> None:
        for branch in (node, *node.elif_):
            if self.value(branch.test, scope):
                return self.run(branch.body, scope)
        self.run(node.else_, scope)

    def run_for(self, node: nodes.For, scope: Scope) -> None:
        if node.recursive:
            raise ValueError("it uses a recursive loop, which this library does not have")
        turns = LoopContext(self._chosen(node, self.walk(self.value(node.iter, scope)), scope), Undefined)
        for item, loop in turns:
            inner = scope.new_child({"loop": loop})
            self.assign(node.target, item, inner)
            try:
                self.run(node.body, inner)
            except Continue:
                continue
            except Break:
                break
        if turns.index0 < 0:
            self.run(node.else_, scope.new_child())

    def _chosen(self, node: nodes.For, items: Iterator[Any], scope: Scope) -> Iterator[Any]:
        """Those for which the condition of the loop holds. It is looked at before each turn, not before the first."""
        for item in items:
            if node.test is not None:
                inner = scope.new_child()
                self.assign(node.target, item, inner)
                if not self.value(node.test, inner):
                    continue
            yield item

    def run_break(self, node: nodes.Node, scope: Scope) -> None:
        raise Break

    def run_continue(self, node: nodes.Node, scope: Scope) -> None:
        raise Continue

    def run_assign(self, node: nodes.Assign, scope: Scope) -> None:
        self.assign(node.target, self.value(node.node, scope), scope)

    def run_assignblock(self, node: nodes.AssignBlock, scope: Scope) -> None:
        text = self.captured(node.body, scope.new_child())
        if node.filter is not None:
            text = self.value(node.filter, scope.new_child({FILTERED: text}))
        self.assign(node.target, text, scope)

    def run_filterblock(self, node: nodes.FilterBlock, scope: Scope) -> None:
        text = self.captured(node.body, scope.new_child())
        self.write(self.text(self.value(node.filter, scope.new_child({FILTERED: text}))))

    def run_scope(self, node: nodes.Scope, scope: Scope) -> None:
        self.run(node.body, scope.new_child())

    def run_with(self, node: nodes.With, scope: Scope) -> None:
        inner = scope.new_child()
        for target, value in zip(node.targets, node.values):
            self.assign(target, self.value(value, scope), inner)
        self.run(node.body, inner)

    def run_macro(self, node: nodes.Macro, scope: Scope) -> None:
        scope[node.name] = self.macro(node.name, node, scope)

    def run_callblock(self, node: nodes.CallBlock, scope: Scope) -> None:
        self.write(self.text(self.value_call(node.call, scope, caller=self.macro("caller", node, scope))))

    def macro(self, name: str, node: nodes.Macro | nodes.CallBlock, scope: Scope) -> Callable[..., str]:
        known = [argument.name for argument in node.args]
        defaults = dict(zip(reversed(known), reversed(node.defaults)))

        def call(*given: Any, **named: Any) -> str:
            inner = scope.new_child({"caller": named.pop("caller", Undefined("there is no caller"))})
            if len(given) > len(known) or not named.keys() <= set(known[len(given) :]):
                raise ValueError(f"the macro {name} has no such arguments")
            named |= zip(known, given)
            for one in known:
                if one not in named and one in defaults:
                    inner[one] = self.value(defaults[one], inner)
                else:
                    inner[one] = named.get(one, Undefined(name=one))
            try:
                return self.captured(node.body, inner)
            except (Break, Continue) as error:
                raise ValueError(f"it has a {type(error).__name__.lower()} outside of a loop") from None

        return call

    # Expressions

    def value_name(self, node: nodes.Name, scope: Scope) -> Any:
        return scope[node.name] if node.name in scope else Undefined(name=node.name)

    def value_const(self, node: nodes.Const, scope: Scope) -> Any:
        return self.made(node.value)

    def value_templatedata(self, node: nodes.TemplateData, scope: Scope) -> str:
        return node.data

    def value_list(self, node: nodes.List, scope: Scope) -> list[Any]:
        return [self.value(item, scope) for item in node.items]

    def value_tuple(self, node: nodes.Tuple, scope: Scope) -> tuple[Any, ...]:
        return tuple(self.value(item, scope) for item in node.items)

    def value_dict(self, node: nodes.Dict, scope: Scope) -> dict[Any, Any]:
        return {self.key(self.value(pair.key, scope)): self.value(pair.value, scope) for pair in node.items}

    def value_condexpr(self, node: nodes.CondExpr, scope: Scope) -> Any:
        if self.value(node.test, scope):
            return self.value(node.expr1, scope)
        return Undefined("there is no else") if node.expr2 is None else self.value(node.expr2, scope)

    def value_and(self, node: nodes.And, scope: Scope) -> Any:
        return self.value(node.left, scope) and self.value(node.right, scope)

    def value_or(self, node: nodes.Or, scope: Scope) -> Any:
        return self.value(node.left, scope) or self.value(node.right, scope)

    def value_not(self, node: nodes.Not, scope: Scope) -> bool:
        return not self.value(node.node, scope)

    def value_neg(self, node: nodes.Neg, scope: Scope) -> Any:
        return -self.value(node.node, scope)

    def value_pos(self, node: nodes.Pos, scope: Scope) -> Any:
        return +self.value(node.node, scope)

    def value_concat(self, node: nodes.Concat, scope: Scope) -> str:
        return self.join([self.value(inner, scope) for inner in node.nodes])

    def value_compare(self, node: nodes.Compare, scope: Scope) -> bool:
        one = self.value(node.expr, scope)
        for operand in node.ops:
            other = self.value(operand.expr, scope)
            if not self.compare(operand.op, one, other):
                return False
            one = other
        return True

    def _binary(self, node: nodes.BinExpr, scope: Scope) -> Any:
        return self.binary(node.operator, self.value(node.left, scope), self.value(node.right, scope))

    value_add = value_sub = value_mul = value_div = value_floordiv = value_mod = value_pow = _binary

    def value_getattr(self, node: nodes.Getattr, scope: Scope) -> Any:
        return self.attribute(self.value(node.node, scope), node.attr)

    def value_getitem(self, node: nodes.Getitem, scope: Scope) -> Any:
        return self.item(self.value(node.node, scope), self.value(node.arg, scope))

    def value_slice(self, node: nodes.Slice, scope: Scope) -> slice:
        parts = (node.start, node.stop, node.step)
        return slice(*(None if part is None else self.value(part, scope) for part in parts))

    def value_filter(self, node: nodes.Filter, scope: Scope) -> Any:
        value = scope[FILTERED] if node.node is None else self.value(node.node, scope)
        args, named = self._arguments(node, scope)
        return self.filter(node.name, value, *args, **named)

    def value_test(self, node: nodes.Test, scope: Scope) -> bool:
        value = self.value(node.node, scope)
        args, named = self._arguments(node, scope)
        return self.test(node.name, value, *args, *named.values())

    def value_call(self, node: nodes.Call, scope: Scope, **more: Any) -> Any:
        function = self.value(node.node, scope)
        args, named = self._arguments(node, scope)
        return function(*args, **named, **more)

    def _arguments(
        self, node: nodes.Call | nodes.Filter | nodes.Test, scope: Scope
    ) -> tuple[list[Any], dict[str, Any]]:
        args = [self.value(one, scope) for one in node.args or ()]
        named = {str(one.key): self.value(one.value, scope) for one in node.kwargs or ()}
        if node.dyn_args is not None:
            args += self.items(self.value(node.dyn_args, scope))
        if node.dyn_kwargs is not None:
            named |= self.dict(self.value(node.dyn_kwargs, scope))
        return args, named

    # What a template may call

    def range(self, *bounds: int) -> range:
        found = range(*bounds)
        self.spend(len(found))
        return found

    def dict(self, pairs: Any = (), /, **named: Any) -> dict[Any, Any]:
        found = pairs.items() if isinstance(pairs, dict) else map(self.items, self.items(pairs))
        return self.made({self.key(key): value for key, value in found} | named)

    def namespace(self, pairs: Any = (), /, **named: Any) -> Namespace:
        return Namespace(self.dict(pairs, **named))

    def joiner(self, between: str = ", ") -> Callable[[], str]:
        """Nothing at the first call, and then what stands between."""
        parts = chain([""], repeat(between))
        return lambda: next(parts)

    def date(self, how: str) -> str:
        if len(how) > MOST_DATE:
            raise ValueError(f"it has a date of more than {MOST_DATE} characters")
        return datetime.now().strftime(how)

    def complain(self, message: Any) -> None:
        raise ValueError(f"it says '{self.text(message)}'")
