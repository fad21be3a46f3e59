"""python -m nescio"""

from nescio.cli import run

if __name__ == "__main__":
    run()
