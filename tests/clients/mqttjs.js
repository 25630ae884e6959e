// An MQTT.js client that reports what happens to it, one JSON object a line.
// Usage: node mqttjs.js URL CLIENT_ID VERSION
'use strict'
const mqtt = require('mqtt')
const [url, clientId, version] = process.argv.slice(2)
const say = (event) => console.log(JSON.stringify(event))

const client = mqtt.connect(url, {
  clientId,
  protocolVersion: Number(version),
  clean: false,
  properties: version === '5' ? { sessionExpiryInterval: 3600 } : undefined,
  resubscribe: false, // the broker has to remember
  reconnectPeriod: 50
})
let subscribed = false
client.on('connect', (connack) => {
  say({ event: 'connect', sessionPresent: connack.sessionPresent })
  if (connack.sessionPresent || subscribed) return
  subscribed = true
  client.subscribe(clientId + '/in', { qos: 2 }, (error) => say({ event: 'subscribed', error }))
})
client.on('message', (topic, payload) => {
  say({ event: 'message', payload: payload.toString() })
  if (!payload.toString().startsWith('echo ')) return
  client.publish(clientId + '/out', payload, { qos: 2 }, () => say({ event: 'published' }))
})
client.on('close', () => say({ event: 'close' }))
client.on('error', () => {})
