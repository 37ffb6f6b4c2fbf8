"""The storage levels: node-local parts, and the parallel file system whose manifests are the commits."""
