// Package handlers is everything that speaks to GitHub: the webhook intake, one
// file per event, and the App's access to the API.
//
// A delivery takes this way: Intake verifies it and has it stored (Deliveries);
// a job then gives it to Dispatcher.Dispatch, which runs the Handler of its
// event. Handlers take an event for a hint and act on what the API says
// (GitHub), through Sessions. Credentials never leave internal/ghapp, but for
// the narrow token that a fetch needs.
//
// UNDERWRITE_PAYLOADS=DIR go test ./handlers -run Payloads -count=1 posts the
// payloads DIR/EVENT/NAME.json and DIR/EVENT.ACTION.json, signed, to an intake.
package handlers
