"""What is damaged or lost is made whole again, while a job runs."""
