"""An observation of your own: ``--import own_observation --set
task.more_observations=[height]``.
"""

import mapush

mapush.register_observation("height", lambda features: features.state.robot_pos[..., 2:], (1.0,))
