"""The states of training jobs: shapes, layouts over ranks, and who saves what."""
