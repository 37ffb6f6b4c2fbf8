"""What has failed where: logs of schedulers and machines, read into one form, and what can be said of them."""
