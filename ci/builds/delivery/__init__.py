"""What a build leaves: judged, recorded, installed and proven."""
