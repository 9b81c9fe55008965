package firewall

// SettleTime and SettleLongest are the times of Monitor.
const SettleTime, SettleLongest = settleTime, settleLongest

// Settle is how Monitor waits for the end of changes.
var Settle = settle
