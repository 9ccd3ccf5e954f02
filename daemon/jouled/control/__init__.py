"""The control socket: HTTP on a UNIX socket, the rights of its peers, the shape of what goes in and out."""
