"""``mapush list objects``: each object's sliding force, and the robots' pushing force."""

from collections.abc import Iterator

from mapush.extensions.pivoting.push_mechanics import least_force_of
from mqe.world.objects import OBJECTS
from mqe.world.scene import sliding_force

# [N] that a Go1 with the gait pretrained:go1_push presses against a wall, by its command [m/s];
# foot friction 0.55 (docs/background/what_takes_a_team.md).
PRESSED = {0.65: 54.0, 1.0: 59.0}
TEAMS = (1, 2, 3, 4, 6, 8)


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    slow, fast = PRESSED
    yield (
        "slides at: the push that slides the object straight, at its own mass. least push: that "
        "moves it at all, by robots abreast at their best places, over the former. can: the push "
        f"of all robots at {slow:g} and {fast:g} m/s. up to: the heaviest object of this shape "
        "that they move, as the push at which it slides."
    )
    yield ""
    yield "object     slides at  robots      least push            can        up to"
    for name, obj in OBJECTS.items():
        force = sliding_force(obj)
        for number in TEAMS:
            least = least_force_of(obj, number).force
            can = [number * pressed for pressed in PRESSED.values()]
            up_to = [value / least for value in can]
            yield (
                f"{name:10} {force:7.1f} N {number:6} {least:5.2f} = {least * force:5.1f} N "
                f"{can[0]:4.0f}, {can[1]:3.0f} N {up_to[0]:4.0f}, {up_to[1]:3.0f} N"
            )
