"""A stand-in for pycuda: the names that the runner uses, failing as the real ones do."""

VERSION_TEXT = "2026.1"
