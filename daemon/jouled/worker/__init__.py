"""The worker: the only process that writes knobs. One command at a time, from one peer, in lines of JSON."""
