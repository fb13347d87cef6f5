from shop import total


def test_empty_basket():
    assert total([]) == 0


def test_sum():
    assert total([250, 100, 49]) == 399
