"""An object of your own: a crate twice as long as wide.

mapush train --import own_object --object crate
"""

import mapush

mapush.register_object(
    "crate",
    mapush.ObjectCfg(
        name="crate",
        geoms=(mapush.GeomCfg("box", (1.6, 0.8, 0.5), mass=4.0),),
        outline=((-0.8, -0.4), (0.8, -0.4), (0.8, 0.4), (-0.8, 0.4)),
        friction=(0.5, 0.6),
        spawn_height=0.28,
        spawn_tilt=0.01,
        spawn_ring=(1.4, 1.5),
    ),
)
