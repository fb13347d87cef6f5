import time


def test_that_never_ends():
    while True:
        time.sleep(1)
