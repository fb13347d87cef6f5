import pytest

from shop import total


def test_ten_percent():
    assert total([1000, 500], discount=10) == 1350


def test_impossible_discount():
    with pytest.raises(ValueError):
        total([1000], discount=120)
