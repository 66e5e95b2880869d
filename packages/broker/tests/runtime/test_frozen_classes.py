import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from ottla.zookeeper.frozen_classes import declared, field_group, frozen, replace


@frozen
class Point:
    """A place."""

    x: int
    y: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)
    unit: str = field(default="m", metadata={"doc": "What is counted in."})

    @property
    def total(self) -> int:
        return self.x + self.y


@frozen(kw_only=True)
class Named:
    name: str = "nobody"
    age: int


@frozen
class Nothing:
    """An event without facts."""


@field_group
class Size:
    """How large something is."""

    width: int = field(default=1, metadata={"doc": "In meters."})
    height: int = 2

    @property
    def area(self) -> int:
        return self.width * self.height


@field_group
class Weight:
    grams: int = 3


@frozen(kw_only=True)
class Parcel(Size, Weight):
    to: str = "nobody"


@dataclass(frozen=True, slots=True)
class Model:
    x: int
    y: int = 0


def test_a_value_is_built_by_position_and_by_name_with_defaults() -> None:
    assert (Point(1).x, Point(1).y, Point(x=1, y=2).total) == (1, 0, 3)
    assert Named(age=3).name == "nobody"


def test_each_value_has_a_default_of_its_own_where_it_is_made() -> None:
    assert Point(1).marks == {}
    assert Point(1).marks is not Point(1).marks


def test_missing_and_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="z"):
        Point(1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Named("anna", 3)  # type: ignore[call-arg]


def test_values_are_equal_by_class_and_fields() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(1, 3)
    assert Point(1, 2) != Model(1, 2)  # type: ignore[comparison-overlap]
    assert Nothing() == Nothing()


def test_equal_values_hash_equal() -> None:
    assert len({Named(name="a", age=1), Named(name="a", age=1), Named(name="a", age=2), Nothing()}) == 3


def test_a_value_is_shown_as_a_dataclass_is() -> None:
    assert repr(Model(1, 2)).replace("Model", "Point") == repr(Point(1, 2)).replace(
        ", marks={}, unit='m'", ""
    )
    assert repr(Nothing()) == "Nothing()"


def test_a_value_does_not_change() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 2  # type: ignore[attr-defined]


def test_a_changed_copy_keeps_the_other_fields() -> None:
    assert replace(Point(1, 2, {"a": 1}), y=5) == Point(1, 5, {"a": 1})
    assert replace(Named(age=1), age=2) == Named(age=2)


def test_values_are_matched_by_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_values_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Named(age=4))) == Named(age=4)


def test_what_fields_were_declared_with_can_be_read() -> None:
    assert declared(Point)["unit"].metadata["doc"] == "What is counted in."
    assert declared(Point)["y"] == 0
    assert "x" not in declared(Point)


def test_a_class_takes_over_the_fields_and_methods_of_its_groups() -> None:
    parcel = Parcel(height=5, to="anna")

    assert (parcel.width, parcel.height, parcel.grams, parcel.to, parcel.area) == (1, 5, 3, "anna", 5)
    assert list(declared(Parcel)) == ["width", "height", "grams", "to"]
    assert declared(Parcel)["width"].metadata["doc"] == "In meters."
    assert replace(parcel, width=2) == Parcel(width=2, height=5, to="anna")
    assert pickle.loads(pickle.dumps(parcel)) == parcel
    assert not hasattr(parcel, "__dict__")
    with pytest.raises(FrozenInstanceError):
        parcel.grams = 1  # type: ignore[misc]


def test_a_class_of_very_many_fields_is_built_as_any_other() -> None:
    names = [f"field_{number}" for number in range(200)]
    annotations: dict[str, Any] = dict.fromkeys(names, "int")
    namespace = {"__annotations__": annotations, "field_1": 1, "field_2": field(default_factory=list)}
    many: Any = frozen(kw_only=True)(type("Many", (), namespace))
    given = dict.fromkeys(names[3:], 7)

    made = many(field_0=0, **given)

    assert (made.field_0, made.field_1, made.field_2, made.field_199) == (0, 1, [], 7)
    assert replace(made, field_1=5).field_1 == 5
    with pytest.raises(TypeError, match="field_0"):
        many(**given)
    with pytest.raises(TypeError, match="field_200"):
        many(field_0=0, field_200=1, **given)
