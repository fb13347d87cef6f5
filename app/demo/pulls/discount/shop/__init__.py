"""Prices of a small shop, in cents."""


def total(prices, discount=0):
    """Return the sum of the prices, less a discount in percent."""
    if not 0 <= discount <= 100:
        raise ValueError("discount must be between 0 and 100")
    return sum(prices) * (100 - discount) // 100
