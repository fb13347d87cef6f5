"""Prices of a small shop, in cents."""


def total(prices):
    """Return the sum of the prices, rounded to five cents."""
    return sum(5 * round(price / 5) for price in prices)
