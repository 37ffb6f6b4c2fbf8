"""Measurements of trainings, and workloads made of them: AdaptDL's, in ``adaptdl.zip``, or one's own."""
