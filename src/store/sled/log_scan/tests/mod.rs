//! Against real databases.
