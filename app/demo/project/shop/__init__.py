"""Prices of a small shop, in cents."""


def total(prices):
    """Return the sum of the prices."""
    return sum(prices)
