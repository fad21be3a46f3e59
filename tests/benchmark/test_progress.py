from contextlib import contextmanager

from nescio.benchmark.progress import in_turn


def test_the_second_stage_begins_at_its_first_step():
    seen = []

    @contextmanager
    def stage(name):
        seen.append(f"{name} begins")
        yield lambda steps: seen.append((name, steps))
        seen.append(f"{name} ends")

    with in_turn(stage("a"), stage("b")) as (first, second):
        first(1)
        second(2)
        second(3)
    assert seen == ["a begins", ("a", 1), "a ends", "b begins", ("b", 2), ("b", 3), "b ends"]
