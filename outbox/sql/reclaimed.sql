-- Part of the statements that take events back: what becomes of a row o. $5 is the most reclaims in a
-- row. Attempts stop at the most of their column.
status = case when o.reclaims + 1 >= $5 then 'failed' else 'pending' end,
      next_retry_at = case when o.reclaims + 1 < $5 then now() end, behind = null,
      attempts = least(coalesce(o.attempts, 0), 2147483646) + 1, reclaims = o.reclaims + 1, updated_at = clock_timestamp(),
      error_reason = case when o.reclaims + 1 >= $5 then 'unknown_exception' else o.error_reason end,
      error = case when o.reclaims + 1 >= $5
                   then format('reclaimed %s times in a row without being settled: the worker that tries this event ends', o.reclaims + 1)
                   else o.error end,
      discarded_at = null, discarded_by = null, discarded_reason = null
