"""Power cuts of a whole machine: a VM with the service on a virtual board, whose power goes at any moment."""
