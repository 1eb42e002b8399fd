\echo Use "CREATE EXTENSION kudos_projector" to load this file. \quit
