"""A virtual Jetson: kernel (sysfs semantics), programs (nvpmodel, jetson_clocks), plant, machine and SimClock."""
