"""The doorbell: Redis only wakes workers, the database says what there is to do."""
