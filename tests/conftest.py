"""One torch thread a test process: two of them run side by side on two cores, and small tensors gain nothing."""

import torch

torch.set_num_threads(1)
