"""The command `pdbo`: what it asks, runs, keeps and shows. Nothing else imports from here."""
