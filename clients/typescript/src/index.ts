export { Attempt, Client, once } from './client.js';
export type { ClaimOptions, ClientOptions, CompleteOptions, Duration, OnError, Outcome } from './client.js';
export {
  Expired,
  Failed,
  InFlight,
  Mismatch,
  NotRecorded,
  OutcomeUnknown,
  Problem,
  Refused,
  ResultOmitted,
  SemelError,
  Stale,
  StepConflict,
  StepTooLarge,
  StepsChanged,
  Unsettled,
  Untrusted,
} from './errors.js';
export { Budget, retryingFetch } from './fetch.js';
export type { RetryOptions } from './fetch.js';
