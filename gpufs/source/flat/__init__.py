"""What all flat stores share: objects under keys, and the directories that keys with slashes stand for."""
