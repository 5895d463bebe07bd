"""The registry's entry for distillation."""

from mapush.extensions.distil.distil import Distil, DistilCfg
from mapush.extensions.distil.teaching import with_teacher
from mapush.registration import register_algorithm

register_algorithm("distil", DistilCfg, Distil, worlds=with_teacher, policies=("teacher",))
