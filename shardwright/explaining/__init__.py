"""Programs as a target's compiler made them, and the verdict on a function of the user's."""
