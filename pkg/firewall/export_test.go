package firewall

// SettleTime, SettleLongest and Settle are of Monitor.
const SettleTime, SettleLongest = settleTime, settleLongest

// Settle is how Monitor waits.
var Settle = settle
