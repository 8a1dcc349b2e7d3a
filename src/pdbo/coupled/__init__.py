"""Problems whose constraints couple the two levels: the dense method and its certificate."""
