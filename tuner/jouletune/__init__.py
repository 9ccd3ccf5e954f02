"""jouletune: from numbers to a decision about power modes. Pure: no file, socket or process."""
