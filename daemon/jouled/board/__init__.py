"""What a Jetson is: identity, sysfs, clocks, nvpmodel, jetson_clocks, rails, thermal, snapshot."""
