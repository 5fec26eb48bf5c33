"""One hypothesis profile for this folder: no assertion on time, the same examples on every run."""

from hypothesis import settings

settings.register_profile("pfkit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("pfkit")
