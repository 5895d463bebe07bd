"""An observation of your own: ``--import own_observation --set
task.more_observations=[height]``.
"""

import mapush

mapush.register_observation("height", lambda state: state.robot_pos[..., 2:], mirror_signs=(1.0,))
