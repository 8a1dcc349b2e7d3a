"""The command `pdbo`: inputs, runs, records, figures and page. Nothing else imports from here."""
