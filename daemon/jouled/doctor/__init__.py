"""What speaks for and against tuning this board, looked at before anybody has to wait for a job to say so."""
